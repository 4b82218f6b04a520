"""The review workbench: a local web application in which people decide about the cases an audit found fragile.

    views      what a reviewer looks at: ranking, budget and filters, as they stand in an address
    history    what decisions about a case mean together: who said what, what stands, who may see it
    store      decisions as an append-only SQLite file
    scratch    a temporary folder that is not left behind
    queries    cases by view, over the Parquet files of an audit (DuckDB)
    rows       the audited rows themselves, where they are given, and the model's answer in any state of one
    pages      what each page shows, and its pictures
    guards     who may use the workbench, and which requests are answered at all
    app        addresses, and what happens at them
    serving    the process: one port of this machine, and the browser

A decision names the digest of a certificate; certificates are never edited.
"""

"""The review workbench: a local web application in which people decide about the cases an audit found fragile.

    views      what a reviewer looks at: ranking, budget and filters, as they stand in an address
    history    what decisions about a case mean together: who said what, what stands, who may see it
    store      decisions as an append-only SQLite file
    cases      the cases of an audit as tables of a temporary database (DuckDB)
    queries    cases by view: which ones, in what order, and those like one of them
    rows       the audited rows, if they are given, and the model's answer in any state of one
    searches   how far the values of one case may move, and what its missing fields would have changed
    pages      what each page shows, and its pictures
    desk       what happens at the addresses of cases
    app        all other addresses, and the process: one port of this machine, and the browser

A decision names the digest of a certificate; certificates are never edited.
"""

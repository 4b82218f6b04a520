"""What every room uses: errors, documents and their schemas, files, digests, ids, intervals of shares, progress.

errors     one tree of errors, each with a sentence that says what to do
files      files that appear whole or not at all
schemas    JSON and TOML read into dataclasses by one strict reader
canonical  canonical bytes, digests and Merkle trees
envelopes  signed statements as data
ids        rows of two tables matched by id
shares     intervals of shares and of their differences
arrays     names of kinds of arrays; how many rows fit into a number of bytes
text       text of unknown origin made safe; plain tables
progress   progress bars
libraries  what is installed, and the bundled data set
"""

"""What every room uses: errors, documents and their schemas, files, digests, ids, intervals of shares, progress."""

"""Scale: audits of more rows than fit into memory."""

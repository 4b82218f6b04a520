"""Rows from files and tables: Parquet, CSV, Arrow, pandas, polars."""

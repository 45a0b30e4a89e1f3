"""Copies of threads: bundles, backups, mirrors of stores, threads of LangGraph's savers."""

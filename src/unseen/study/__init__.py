"""Studies: methods × hold-out plan × seeds, their records, selection and tables."""

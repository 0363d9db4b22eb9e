"""`unseen watch`: a study at work, from the records that it leaves on disk."""

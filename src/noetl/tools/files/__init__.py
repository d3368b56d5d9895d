"""Files among the results of an execution, objects of stores, and program text from either."""

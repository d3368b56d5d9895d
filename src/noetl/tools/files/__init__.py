"""Files among the results of an execution, objects in stores, and program text from either."""

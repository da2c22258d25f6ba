"""What tests of jobs in AWX need: its API as far as it is used, its collection, an execution environment, a job."""

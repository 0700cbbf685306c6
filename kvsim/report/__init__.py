"""What people look at: terminal tables and plots of a `Result`."""

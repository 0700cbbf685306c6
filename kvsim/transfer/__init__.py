"""What moving costs: links, their queues, and how they are shared."""

"""What the JetStream engine reaches beside a bare loop of nats-py and beside taskiq-nats."""

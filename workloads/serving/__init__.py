"""What a program that answers requests of a language model is made of: traces, pages, queues, messages."""

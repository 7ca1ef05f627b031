"""What was said, beyond single messages: taken in, streamed, cut to a window, summed up."""

"""The pool of Ray actors: workers on the machines of a cluster. Nothing else imports Ray."""

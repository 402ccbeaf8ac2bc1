//! Both ends of the socket, with a service that answers from memory.

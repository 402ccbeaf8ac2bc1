//! Both ends of the socket, with a service that answers from memory.

mod calls;
mod hostile;
mod life;
mod memory_tree;
mod peer;

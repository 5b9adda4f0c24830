//! The node document and the files beside it, from the outside: what is read, what is refused
//! and with which words, and how a document's file is followed.

mod fields;
mod garbage;
mod hostile;
mod masquerade;
mod read;
mod relations;
mod support;
mod watching;

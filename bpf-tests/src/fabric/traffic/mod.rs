//! Real traffic: echo servers, single exchanges, lasting connections, numbered streams.

mod connection;
mod echo;
mod exchange;
mod stream;

pub use connection::Connection;
pub use echo::Echo;
pub use exchange::{Protocol, ping, tcp, tcp_bulk, udp};
pub use stream::{Report, Stream};

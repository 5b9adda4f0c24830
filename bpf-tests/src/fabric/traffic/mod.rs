//! Real traffic: echo servers, single exchanges, numbered streams.

mod echo;
mod exchange;
mod stream;

pub use echo::Echo;
pub use exchange::{Protocol, ping, tcp, tcp_bulk, udp};
pub use stream::{Report, Stream};

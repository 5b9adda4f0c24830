//! Real traffic: echo servers, single exchanges, lasting connections, numbered streams.

mod connection;
mod echo;
mod exchange;
mod raw_ip;
mod sctp;
mod session;
mod stream;
mod web;

pub use connection::Connection;
pub use echo::Echo;
pub use exchange::{Protocol, connect_from_port, ping, tcp, tcp_bulk, udp, uninterrupted};
pub use raw_ip::{Datagram, of_protocol, send_ip};
pub use session::{Asker, Session};
pub use stream::{Report, Stream};
pub use web::Web;

//! A TCP connection that stays open.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};

use super::Echo;
use super::exchange::connect_from;
use crate::fabric::Place;

/// An open TCP connection to an echo server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    label: String,
    _echo: Echo,
}

impl Connection {
    /// Starts an echo server at a place and connects to it from another.
    ///
    /// # Errors
    /// When it cannot be opened in time.
    pub fn open(from: Place, to: Place) -> Result<Self> {
        let echo = Echo::start(to)?;
        let stream = connect_from(from, echo.address())?;
        Ok(Self {
            stream,
            label: format!("the connection from {} to {}", from.address, to.address),
            _echo: echo,
        })
    }

    /// Sends a few bytes and takes them back, over the same connection.
    ///
    /// # Errors
    /// When the connection is gone, or not the same bytes come back in time.
    pub fn exchange(&mut self) -> Result<()> {
        let mut exchange = || {
            let mut back = [0; 7];
            self.stream.write_all(b"towpath")?;
            self.stream.read_exact(&mut back)?;
            ensure!(&back == b"towpath", "other bytes came back");
            Ok(())
        };
        exchange().with_context(|| self.label.clone())
    }
}

//! A TCP connection that stays open.

use anyhow::Result;

use super::{Echo, Session};
use crate::fabric::Place;

/// An open TCP connection to a server of its own.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    _echo: Echo,
}

impl Connection {
    /// Starts an echo server at a place and connects to it from another.
    ///
    /// # Errors
    /// When it cannot be opened in time.
    pub fn open(from: Place, to: Place) -> Result<Self> {
        let echo = Echo::telling(to, 0)?;
        let session = Session::open(from, 0, echo.address())?;
        Ok(Self {
            session,
            _echo: echo,
        })
    }

    /// Sends a few bytes and takes them back, over the same connection.
    ///
    /// # Errors
    /// When the connection is gone, or not the same bytes come back in time.
    pub fn exchange(&mut self) -> Result<()> {
        self.session.exchange()
    }
}

//! Standard output of a running plugin.

use std::io::{ErrorKind, Read as _};
use std::process::ChildStdout;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Longest output that is read, in bytes.
const LONGEST: usize = 1 << 20;
/// Bytes that are read at once, as many as a pipe has by default.
const CHUNK: usize = 1 << 16;

/// The output, as far as it is read.
pub(crate) struct Output {
    pipe: ChildStdout,
    pub(crate) printed: Vec<u8>,
}

impl Output {
    /// The output of a pipe. Reads of the pipe do not block from then on.
    ///
    /// # Errors
    /// If the kernel refuses to change the pipe.
    pub(crate) fn new(pipe: ChildStdout) -> Result<Self, String> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|error| format!("its output cannot be read: {error}"))?;
        Ok(Self {
            pipe,
            printed: Vec::new(),
        })
    }

    /// Reads what is there by now; true at the end of the output.
    ///
    /// # Errors
    /// If the output cannot be read, or is too long for a result.
    pub(crate) fn read(&mut self) -> Result<bool, String> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = match self.pipe.read(&mut chunk) {
                Ok(0) => return Ok(true),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("its output cannot be read: {error}")),
            };
            self.printed.extend(chunk.iter().take(length));
            if self.printed.len() > LONGEST {
                return Err(format!(
                    "it printed more than {LONGEST} bytes; expected a shorter result"
                ));
            }
        }
    }
}

//! The meaning of the kernel's error numbers, decided in one place.

use std::io;

/// A request that did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The kernel said no.
    #[error("{}{}", io::Error::from_raw_os_error(*errno), suffix(reason.as_deref()))]
    Refused {
        /// The error number, positive.
        errno: i32,
        /// The kernel's own words (extended acknowledgement), where it has any.
        reason: Option<String>,
    },
    /// The socket failed.
    #[error("the netlink socket failed: {0}")]
    Socket(#[from] io::Error),
}

fn suffix(reason: Option<&str>) -> String {
    reason
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default()
}

impl RequestError {
    /// The error number of a refusal.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::Socket(_) => None,
        }
    }

    /// True if an add met an object that is there already.
    pub(super) fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// True if the object is not there: ESRCH (routes), ENOENT (rules, neighbours), ENODEV (its
    /// device went), EADDRNOTAVAIL (addresses).
    pub(super) fn is_gone(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ESRCH | libc::ENOENT | libc::ENODEV | libc::EADDRNOTAVAIL)
        )
    }

    /// True if the device has no part for the family: IPv6 is off, or was never built in.
    pub(super) fn is_family_missing(&self) -> bool {
        self.errno() == Some(libc::EAFNOSUPPORT)
    }
}

/// Takes "it is not there" as the success of a delete.
pub(super) fn deleted(result: Result<(), RequestError>) -> Result<(), RequestError> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32) -> RequestError {
        RequestError::Refused {
            errno,
            reason: None,
        }
    }

    #[test]
    fn a_delete_succeeds_when_the_object_is_gone_and_only_then() {
        for errno in [libc::ESRCH, libc::ENOENT, libc::ENODEV, libc::EADDRNOTAVAIL] {
            assert!(deleted(Err(refused(errno))).is_ok(), "{errno}");
        }
        for errno in [libc::EPERM, libc::EINVAL, libc::EBUSY, libc::EEXIST] {
            assert!(deleted(Err(refused(errno))).is_err(), "{errno}");
        }
        let broken = io::Error::from_raw_os_error(libc::ENOENT);
        assert!(deleted(Err(broken.into())).is_err(), "the socket's own");
    }

    #[test]
    fn a_refusal_says_the_error_and_the_kernels_reason() {
        let error = RequestError::Refused {
            errno: libc::EINVAL,
            reason: Some("Nexthop has invalid gateway".into()),
        };
        let text = error.to_string();
        assert!(text.starts_with("Invalid argument"), "{text}");
        assert!(text.ends_with(": Nexthop has invalid gateway"), "{text}");
    }
}

//! Conversion of the allocator's errors into those of the API.

use api::{ApiError, ErrorCode};
use ipam::{AllocateError, Family};

use super::Addresses;

impl Addresses {
    /// The API error for an error of the allocator.
    pub(crate) fn refusal(&self, error: &AllocateError) -> ApiError {
        let refusal = refusal(error);
        match self.other_family(error) {
            Some(other) => {
                let message = format!(
                    "{}; this node has only {other} addresses: if that is to stay so, ask for these by \
                     `families` of the request or the CNI configuration, or by the agent's ipam.families",
                    refusal.message
                );
                ApiError { message, ..refusal }
            }
            None => refusal,
        }
    }

    /// The only family that the node has addresses of, if the error is about the other one.
    fn other_family(&self, error: &AllocateError) -> Option<Family> {
        let (AllocateError::NoFamily { family, .. }
        | AllocateError::UnknownPool { family, .. }
        | AllocateError::Exhausted { family, .. }) = error
        else {
            return None;
        };
        let blocks = self.manager.allocator().blocks();
        let mut of_family = blocks.iter().map(|block| Family::of_net(block.cidr));
        let other = of_family.next()?;
        (other != *family && of_family.all(|of| of == other)).then_some(other)
    }
}

fn refusal(error: &AllocateError) -> ApiError {
    let (code, field) = match error {
        AllocateError::Restoring { .. } | AllocateError::PolicyUnknown { .. } => {
            (ErrorCode::NotReady, None)
        }
        AllocateError::NoFamily { .. }
        | AllocateError::NotMasqueraded { .. }
        | AllocateError::UnknownPool { .. } => (ErrorCode::PoolUnknown, Some("pools")),
        AllocateError::Exhausted { .. } => (ErrorCode::PoolExhausted, None),
        AllocateError::NotReady { .. } | AllocateError::BlockDraining { .. } => {
            (ErrorCode::PoolNotReady, None)
        }
        AllocateError::NotInBlock { .. } | AllocateError::Barred { .. } => {
            (ErrorCode::AddressNotOwned, Some("addresses"))
        }
        AllocateError::OtherPool { .. } => (ErrorCode::InvalidField, Some("pools")),
        AllocateError::InUse { .. } => (ErrorCode::AddressInUse, Some("addresses")),
        AllocateError::CoolingDown { .. } => (ErrorCode::AddressCoolingDown, Some("addresses")),
        AllocateError::HasAnother { .. } | AllocateError::Orphaned { .. } => {
            (ErrorCode::OwnerConflict, Some("owner"))
        }
    };
    let refusal = ApiError::new(code, error.to_string()).temporary(error.is_temporary());
    match field {
        Some(field) => refusal.at(field),
        None => refusal,
    }
}

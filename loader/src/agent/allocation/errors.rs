//! What the allocator refuses, as the socket says it.

use ipam::AllocateError;

use crate::api::{ApiError, ErrorCode};

/// The answer for what the allocator refuses.
pub(in crate::agent) fn refusal(error: &AllocateError) -> ApiError {
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

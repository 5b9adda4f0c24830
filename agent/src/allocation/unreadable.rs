//! Names of owners whose record, an endpoint's or a lease's, cannot be read: only the id is known.
//! Their addresses have leases like any other, so they are not allocated again. They cool down when
//! the owner is deleted.

use api::ids::{EndpointId, Owner};

/// An owner's own name, and its placeholder name while a record of it cannot be read.
pub(super) fn names(owner: &Owner) -> [Owner; 2] {
    [owner.clone(), EndpointId::of(owner).unknown_owner()]
}

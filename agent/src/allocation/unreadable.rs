//! The names of owners. Where a record cannot be read, an endpoint's or a lease's, only an id is known.
//! Its addresses are leases like any other, so that nobody else gets them, and they cool down when the
//! owner is deleted.

use api::ids::{EndpointId, Owner};

/// An owner by its own name, and as it is called while a record of it cannot be read.
pub(super) fn names(owner: &Owner) -> [Owner; 2] {
    [owner.clone(), EndpointId::of(owner).unknown_owner()]
}

//! Features that the kernel lacks.

use serde::{Deserialize, Serialize};

/// Something that the kernel lacks, which we use where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingFeature {
    /// Its name.
    pub name: String,
    /// Consequence of the lack.
    pub consequence: String,
}

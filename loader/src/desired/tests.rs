use crate::intent::Intent;

pub(super) fn intent() -> Intent {
    todo!()
}

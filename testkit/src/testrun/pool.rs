//! Loaded programs, which tests with the same settings reuse. Verifying them takes the kernel a
//! second or two each time, and half a minute on an emulated machine.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use loader::bpf::DatapathSettings;

/// Items that no test uses at the moment, each with its settings.
#[derive(Debug, Default)]
pub struct Pool<T> {
    free: Mutex<Vec<(DatapathSettings, T)>>,
}

/// An item of a pool, for one test; it then returns to the pool.
#[derive(Debug)]
pub struct Lease<T: 'static> {
    pool: &'static Pool<T>,
    settings: DatapathSettings,
    /// Present until the lease ends.
    held: Option<T>,
}

impl<T> Pool<T> {
    /// An empty pool.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            free: Mutex::new(Vec::new()),
        }
    }

    /// An item with these settings: a free one is reset, otherwise one is loaded.
    ///
    /// # Errors
    /// Those of the functions.
    pub fn lease(
        &'static self,
        settings: &DatapathSettings,
        load: impl FnOnce(&DatapathSettings) -> Result<T>,
        make_fresh: impl FnOnce(T) -> Result<T>,
    ) -> Result<Lease<T>> {
        let held = match self.take(settings) {
            Some(free) => make_fresh(free)?,
            None => load(settings)?,
        };
        Ok(Lease {
            pool: self,
            settings: settings.clone(),
            held: Some(held),
        })
    }

    fn take(&self, settings: &DatapathSettings) -> Option<T> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.iter().position(|(of, _)| of == settings)?;
        Some(free.swap_remove(place).1)
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held
            .as_ref()
            .expect("it is there until the lease ends")
    }
}

impl<T> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held
            .as_mut()
            .expect("it is there until the lease ends")
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let mut free = self.pool.free.lock();
            let free = free.as_mut().unwrap_or_else(|poison| poison.get_mut());
            free.push((self.settings.clone(), held));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_test_had_another_has_afresh() {
        static POOL: Pool<u32> = Pool::new();
        let lease = |settings: &DatapathSettings| {
            let lease = POOL.lease(settings, |_| Ok(1), |free| Ok(free + 10));
            lease.unwrap()
        };
        let some = DatapathSettings::default();
        let other = DatapathSettings {
            masquerade_v6: !some.masquerade_v6,
            ..some.clone()
        };
        let first = lease(&some);
        assert_eq!((*first, *lease(&some)), (1, 1), "at the same time");
        drop(first);
        assert_eq!(*lease(&other), 1, "with other settings");
        assert_eq!(*lease(&some), 11);
    }
}

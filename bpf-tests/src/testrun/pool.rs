//! Loaded programs, which tests with the same settings use one after the other: to verify them
//! takes the kernel a second or two each time, and on an emulated machine half a minute.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use loader::bpf::DatapathSettings;

/// What no test uses at the moment, each with the settings it was loaded with.
#[derive(Debug, Default)]
pub struct Pool<T> {
    free: Mutex<Vec<(DatapathSettings, T)>>,
}

/// Something of a pool, for one test; another one has it afterwards.
#[derive(Debug)]
pub struct Lease<T: 'static> {
    pool: &'static Pool<T>,
    settings: DatapathSettings,
    /// There until the lease ends.
    held: Option<T>,
}

impl<T> Pool<T> {
    /// A pool with nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            free: Mutex::new(Vec::new()),
        }
    }

    /// Something with these settings: what is free is made fresh, else it is loaded.
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

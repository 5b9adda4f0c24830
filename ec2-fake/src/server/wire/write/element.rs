//! XML elements.

use std::io;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

/// An element.
#[derive(Clone, Debug)]
pub(in crate::server::wire) struct Element {
    /// The name.
    pub(super) name: String,
    /// The XML namespace, for an answer's first element.
    namespace: Option<&'static str>,
    /// The content.
    pub(super) content: Content,
}

/// The content of an element.
#[derive(Clone, Debug)]
pub(in crate::server::wire) enum Content {
    /// A value.
    Text(String),
    /// Other elements.
    Elements(Vec<Element>),
}

impl Element {
    /// An element with a value.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "numbers, addresses and borrowed texts are passed alike"
    )]
    pub(super) fn text(name: &str, value: impl ToString) -> Self {
        Self {
            name: name.to_owned(),
            namespace: None,
            content: Content::Text(value.to_string()),
        }
    }

    /// An element with a value, where there is one.
    pub(super) fn maybe(name: &str, value: Option<impl ToString>) -> Option<Self> {
        value.map(|value| Self::text(name, value))
    }

    /// An element with child elements.
    pub(super) fn of(name: &str, elements: Vec<Self>) -> Self {
        Self {
            name: name.to_owned(),
            namespace: None,
            content: Content::Elements(elements),
        }
    }

    /// A list: each element of it is an `item`.
    pub(super) fn list(name: &str, items: impl IntoIterator<Item = Vec<Self>>) -> Self {
        let items = items.into_iter().map(|item| Self::of("item", item));
        Self::of(name, items.collect())
    }

    /// A list of values.
    pub(super) fn texts<T: ToString>(name: &str, values: impl IntoIterator<Item = T>) -> Self {
        let items = values.into_iter().map(|value| Self::text("item", value));
        Self::of(name, items.collect())
    }

    /// The element with an XML namespace.
    pub(super) fn with_namespace(mut self, namespace: &'static str) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// The XML document.
    ///
    /// # Errors
    /// When a text cannot be written.
    pub(in crate::server::wire) fn print(&self) -> io::Result<Vec<u8>> {
        let mut writer = Writer::new(Vec::new());
        writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
        self.write(&mut writer)?;
        Ok(writer.into_inner())
    }

    fn write(&self, writer: &mut Writer<Vec<u8>>) -> io::Result<()> {
        let namespace = self.namespace.map(|namespace| ("xmlns", namespace));
        let start = writer.create_element(&self.name).with_attributes(namespace);
        match &self.content {
            Content::Text(text) => start.write_text_content(BytesText::new(text))?,
            Content::Elements(elements) => start.write_inner_content(|writer| {
                elements
                    .iter()
                    .try_for_each(|element| element.write(writer))
            })?,
        };
        Ok(())
    }
}

//! Enumerations whose values are words.

/// Makes an enumeration of words. Each value has one word, in JSON and on the command line, and a
/// description. `[default]` marks the default, `[serde(other)]` the value of
/// words that this program does not know.
macro_rules! words {
    (
        $(#[doc = $about:tt])*
        #[derive($($derive:ident),*)]
        $type:ident { $($(#[doc = $doc:tt])* $([$($mark:tt)*])? $variant:ident = $word:tt,)* }
    ) => {
        $(#[doc = $about])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
            utoipa::ToSchema, $($derive),*
        )]
        pub enum $type {
            $($(#[doc = $doc])* $(#[$($mark)*])? #[serde(rename = $word)] $variant,)*
        }

        impl $type {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word of the value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Description of the value.
            #[must_use]
            pub fn about(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*),)* }.trim_start()
            }
        }
    };
}

pub(crate) use words;

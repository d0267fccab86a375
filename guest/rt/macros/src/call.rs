//! `#[call(NUMBER)]`: from a description, the synchronous form of a system call, the asynchronous one that owns what it
//! uses, and the asynchronous one that borrows it.
//!
//! A description is a function whose parameters have kinds instead of types and whose body is the array of the call's
//! words. In the body a parameter of a kind is a value with `word()`, or `address()` and `length()`.
//!
//! | kind | synchronous | owned | borrowed |
//! |---|---|---|---|
//! | `Fd` | `impl AsFd` | `impl AsFd` | `BorrowedFd<'a>` |
//! | `Closing` | `OwnedFd` | `OwnedFd` | `OwnedFd` |
//! | `Input` | `&[u8]` | `impl Buffer`, returned | `&'a [u8]` |
//! | `Output` | `&mut [u8]` | `impl BufferMut`, returned | `&'a mut [u8]` |
//! | `Records<T>` | `&mut [T]` | `Vec<T>`, returned | `&'a mut [T]` |
//! | `Record<T>` | `&mut T` | `Box<T>`, returned | `&'a mut T` |
//! | `Path` | `&CStr` | `CString` | `&'a CStr` |
//! | `Word` | `&AtomicU32` | `Arc<AtomicU32>` | `&'a AtomicU32` |
//! | `Span` | `Duration` | `Duration` | `Duration` |
//!
//! Anything else is passed as it is.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, FnArg, GenericArgument, Ident, ItemFn, Pat, PathArguments, Result, ReturnType, Type};

/// The code for a parameter in each form of a call.
#[derive(Default)]
struct Parameter {
    name: Option<Ident>,
    /// Types.
    sync: TokenStream,
    owned: TokenStream,
    borrowed: TokenStream,
    /// How the body's value is made of a `&mut` to the parameter.
    lower: TokenStream,
    /// The same in the owned form, where that differs.
    lower_owned: Option<TokenStream>,
    /// Whether the owned form gives it back, and as what.
    returned: Option<TokenStream>,
    /// A type parameter of the owned form.
    generic: Option<TokenStream>,
    /// For a descriptor: how its number is got. It is not kept with the memory, since the kernel has a reference of its
    /// own to what it stands for.
    number: Option<TokenStream>,
}

/// The forms of the call.
pub fn expand(number: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(item)?;
    let parameters = function.sig.inputs.iter().map(parameter).collect::<Result<Vec<_>>>()?;
    let output: Type = match &function.sig.output {
        ReturnType::Type(_, output) => (**output).clone(),
        ReturnType::Default => syn::parse_quote!(()),
    };
    let name = &function.sig.ident;
    let sync_name = format_ident!("{name}_sync");
    let borrowed_name = format_ident!("{name}_borrowed");
    let (attributes, body) = (&function.attrs, &function.block);
    let names: Vec<_> = parameters.iter().map(|each| &each.name).collect();
    let kept: Vec<_> =
        parameters.iter().filter(|each| each.number.is_none()).map(|each| &each.name).collect();
    let numbers: Vec<_> = parameters.iter().filter_map(|each| each.number.as_ref()).collect();
    let lowers: Vec<_> = parameters.iter().map(|each| &each.lower).collect();
    let lowers_owned: Vec<_> =
        parameters.iter().map(|each| each.lower_owned.as_ref().unwrap_or(&each.lower)).collect();
    let sync: Vec<_> = parameters.iter().map(|each| &each.sync).collect();
    let owned: Vec<_> = parameters.iter().map(|each| &each.owned).collect();
    let borrowed: Vec<_> = parameters.iter().map(|each| &each.borrowed).collect();
    let generics: Vec<_> = parameters.iter().filter_map(|each| each.generic.as_ref()).collect();
    let returned: Vec<_> =
        parameters.iter().filter(|each| each.returned.is_some()).map(|each| &each.name).collect();
    let returned_types: Vec<_> = parameters.iter().filter_map(|each| each.returned.as_ref()).collect();
    let result = quote!(::std::io::Result<#output>);
    let (owned_output, owned_value) = if returned.is_empty() {
        (result.clone(), quote!(result))
    } else {
        (quote!((#result, #(#returned_types),*)), quote!((result, #(#returned),*)))
    };
    let sync_doc = format!("[`{name}`], synchronously: the calling thread waits.");
    let borrowed_doc = format!(
        "[`{name}`] with borrowed memory.\n\n# Safety\nThe future is not leaked: its drop is what makes the kernel let \
         go of the memory."
    );
    Ok(quote! {
        #(#attributes)*
        pub async fn #name<#(#generics),*>(#(#names: #owned),*) -> #owned_output {
            #(#numbers)*
            let (result, keep) = crate::operation::run((#(#kept,)*), move |keep| {
                let (#(#kept,)*) = keep;
                #(#lowers_owned)*
                crate::words::Words::new::<#output>(#number, #body)
            })
            .await;
            #[allow(unused_variables, reason = "what is not given back ends here")]
            let (#(#kept,)*) = keep;
            let result = crate::words::output::<#output>(result);
            #owned_value
        }

        #[doc = #sync_doc]
        pub fn #sync_name(#(#names: #sync),*) -> #result {
            #(#numbers)*
            let mut keep = (#(#kept,)*);
            let words = {
                let (#(#kept,)*) = &mut keep;
                #(#lowers)*
                crate::words::Words::new::<#output>(#number, #body)
            };
            // The memory that the words name lives to the end of the block.
            let result = words.call();
            crate::words::output(result)
        }

        #[doc = #borrowed_doc]
        #[allow(unsafe_code, reason = "the caller promises not to leak the future")]
        pub unsafe fn #borrowed_name<'a>(
            #(#names: #borrowed),*
        ) -> impl ::core::future::Future<Output = #result> + Send + 'a {
            #(#numbers)*
            async move {
                // SAFETY: the caller's promise.
                let (result, _) = unsafe {
                    crate::operation::run_borrowed((#(#kept,)*), move |keep| {
                        let (#(#kept,)*) = keep;
                        #(#lowers)*
                        crate::words::Words::new::<#output>(#number, #body)
                    })
                }
                .await;
                crate::words::output(result)
            }
        }
    })
}

fn parameter(argument: &FnArg) -> Result<Parameter> {
    let FnArg::Typed(argument) = argument else {
        return Err(Error::new_spanned(argument, "a call has no `self`"));
    };
    let Pat::Ident(pattern) = &*argument.pat else {
        return Err(Error::new_spanned(&argument.pat, "a parameter is a name"));
    };
    let name = pattern.ident.clone();
    let mut made = kind(&name, &argument.ty);
    made.name = Some(name);
    Ok(made)
}

/// The kind's name, and its type argument.
fn kind_of(kind: &Type) -> Option<(String, Option<Type>)> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last()?;
    let argument = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => {
            arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::Type(inner) => Some(inner.clone()),
                _ => None,
            })
        }
        _ => None,
    };
    Some((last.ident.to_string(), argument))
}

fn kind(name: &Ident, kind: &Type) -> Parameter {
    let generic = format_ident!("T{}", name.to_string().to_uppercase());
    let lower = |with: TokenStream| quote!(let #name = crate::lower::#with;);
    let (kind_name, inner) = kind_of(kind).unwrap_or_default();
    let parameter = |sync, owned, borrowed, with| Parameter {
        sync,
        owned,
        borrowed,
        lower: lower(with),
        ..Parameter::default()
    };
    match kind_name.as_str() {
        "Fd" => {
            let number = format_ident!("{name}_number");
            Parameter {
                generic: Some(quote!(#generic: ::std::os::fd::AsFd)),
                number: Some(quote!(let #number = crate::lower::number(&#name);)),
                ..parameter(
                    quote!(impl ::std::os::fd::AsFd),
                    quote!(#generic),
                    quote!(::std::os::fd::BorrowedFd<'a>),
                    quote!(fd(#number)),
                )
            }
        }
        "Closing" => {
            let owned = quote!(crate::lower::Closing);
            parameter(owned.clone(), owned.clone(), owned, quote!(closing(#name)))
        }
        "Input" => Parameter {
            generic: Some(quote!(#generic: crate::Buffer)),
            returned: Some(quote!(#generic)),
            lower_owned: Some(lower(quote!(input(crate::Buffer::bytes(#name))))),
            ..parameter(quote!(&[u8]), quote!(#generic), quote!(&'a [u8]), quote!(input(#name)))
        },
        "Output" => Parameter {
            generic: Some(quote!(#generic: crate::BufferMut)),
            returned: Some(quote!(#generic)),
            lower_owned: Some(lower(quote!(output(crate::BufferMut::bytes_mut(#name))))),
            ..parameter(quote!(&mut [u8]), quote!(#generic), quote!(&'a mut [u8]), quote!(output(#name)))
        },
        "Records" => Parameter {
            returned: Some(quote!(Vec<#inner>)),
            ..parameter(
                quote!(&mut [#inner]),
                quote!(Vec<#inner>),
                quote!(&'a mut [#inner]),
                quote!(records(#name)),
            )
        },
        "Record" => Parameter {
            returned: Some(quote!(Box<#inner>)),
            ..parameter(
                quote!(&mut #inner),
                quote!(Box<#inner>),
                quote!(&'a mut #inner),
                quote!(record(#name)),
            )
        },
        "Path" => parameter(
            quote!(&::core::ffi::CStr),
            quote!(::std::ffi::CString),
            quote!(&'a ::core::ffi::CStr),
            quote!(path(#name)),
        ),
        "Word" => parameter(
            quote!(&::core::sync::atomic::AtomicU32),
            quote!(::std::sync::Arc<::core::sync::atomic::AtomicU32>),
            quote!(&'a ::core::sync::atomic::AtomicU32),
            quote!(word(#name)),
        ),
        "Span" => {
            let span = quote!(crate::Span);
            parameter(span.clone(), span.clone(), span, quote!(span(#name)))
        }
        _ => {
            let plain = quote!(#kind);
            Parameter {
                sync: plain.clone(),
                owned: plain.clone(),
                borrowed: plain,
                lower: quote!(let #name = *#name;),
                ..Parameter::default()
            }
        }
    }
}

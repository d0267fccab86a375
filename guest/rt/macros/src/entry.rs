//! `#[heddle_rt::main]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Error, ItemFn, Meta, Result, Token};

/// The function `main` that runs the given one as the first coroutine.
pub fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(item)?;
    let signature = &function.sig;
    if signature.asyncness.is_none() || !signature.inputs.is_empty() {
        return Err(Error::new_spanned(signature, "the first coroutine is an `async fn` without parameters"));
    }
    let settings = Punctuated::<Meta, Token![,]>::parse_terminated.parse2(arguments)?;
    let mut builder = quote!(::heddle_rt::Builder::new());
    for setting in &settings {
        let name = setting.path();
        let is_known = |known: &[&str]| known.iter().any(|known| name.is_ident(known));
        builder = match setting {
            Meta::NameValue(setting) if is_known(&["threads", "priority", "strict"]) => {
                let value = &setting.value;
                quote!(#builder.#name(#value))
            }
            Meta::Path(_) if is_known(&["strict"]) => quote!(#builder.strict(true)),
            _ => {
                let known = "it knows `threads = N`, `priority = LEVEL` and `strict`";
                return Err(Error::new_spanned(setting, known));
            }
        };
    }
    let (attributes, visibility, name, output, block) =
        (&function.attrs, &function.vis, &signature.ident, &signature.output, &function.block);
    Ok(quote! {
        #(#attributes)*
        #visibility fn #name() #output {
            #builder.run(async move #block)
        }
    })
}

// Package cacheapi decides what a build cache of a site holds and answers, for clients
// that were not written for it: the remote execution API's (cacheapi/grpcapi) and the
// HTTP caches' (cacheapi/httpapi).
//
//	content   bytes by their SHA-256 or BLAKE3; the latter is the store's own name
//	result    an ActionResult by the action that made it
//	value     bytes by a key that the client chose
//
// What is not here is looked for at the other members, fetched by content and kept, so
// that a build on one node finds what another built, uplink or not.
//
//	content:  local ─▶ a member says for what the SHA-256 stands ─▶ fetched ─▶ hashed ─▶ bound
//	result:   local ─▶ a member's word ─▶ its shape is checked ─▶ its closure is here or fetched ─▶ bound
//
// Invariants: bytes are served under a hash only if they have it; what FindMissing does
// not report, and the whole closure of a result that was served, is kept from collection
// for Keep from that moment on (C08); a result whose closure is not complete is a miss; an
// upload that was cut goes on where it ended, also in another process (C17).
//
// What it does not decide: who may write, which is Tokens' to say and the two front ends'
// to ask; and whether a result is true. Nobody can check that by looking: who holds the
// write token of a member, and each member, is believed (docs/security.md).
package cacheapi

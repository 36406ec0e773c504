// Package forgeyard holds the nouns that every other package speaks in:
// identifiers, digests, fences, instants and error kinds.
//
// It decides nothing and imports nothing of ours. The zero value of every type
// here means "not set" and is never a valid name of anything.
//
// The package is pure: no I/O, no clock, no goroutine, no randomness, no lock.
package forgeyard

// Package mesh is who a node is, whom it lets in, and how bytes reach the others.
//
// It acts: keys, sockets, goroutines. What it decides is small and stands here.
//
// # A remote peer
//
//	        connects                 hello accepted                credential expires,
//	(none) ─────────▶ stranger ─────────────────────▶ admitted ──── is revoked ───▶ dropped
//	                     │   join only, few, not for long                             │
//	                     └────────────── grace over, too many strikes ────────────────┘
//
// Who a peer is (its peer id) is proved by the encrypted connection. Whether it
// may speak is proved by a member credential: CBOR signed by the site key, shown
// in the hello of each connection. Its class says which protocols it may open.
//
// # Two ways to carry a stream
//
// Both live on one port number.
//
//   - Direct: one TLS connection per stream, straight on TCP, told apart from
//     libp2p by its first byte. Raft and calls take it, so that a bulk transfer
//     never sits in front of a heartbeat in a shared send queue: control outranks
//     content (decision 29).
//   - libp2p: TCP+TLS+yamux, QUIC where TCP cannot pass. Content takes it, hello
//     and join take it, and so does a direct dial that fails.
//
// Gossip (memberlist) has its own port and key. What it says is a hint: addresses
// and liveness for people and for dialling, never authority.
//
// # Invariants
//
//   - A handler registered here runs only for a peer that is admitted, in a class the handler
//     allows, not revoked, and whose credential has not run out; checked when a stream opens, and
//     again every second for what is open.
//   - A secret (node key, site key, gossip key, token) cannot be printed by fmt,
//     encoding/json or slog; it leaves this package by Secret.Reveal, Token.Text, a file of mode
//     0600 or an encrypted stream to a pinned peer.
//   - Everything a stranger can make us hold is bounded; see limits.go.
//
// It does not decide who may join (the admit function asks the log), nor who is
// revoked (Config.Revoked asks the log), nor what a protocol's bytes mean.
package mesh

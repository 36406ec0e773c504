// Package peer decides from which peer a block comes, and brings content into
// the local store: cas.Exchange between nodes.
//
// Three protocols do it. Between nodes of ours blocks move over one long connection
// each way (package bulk); with others over bitswap (boxo), which any IPFS node
// speaks. A link chooses when it first asks. What bitswap cannot say travels over
// /forgeyard/cas/1: "do you have this, how large is it, which manifest", with a real
// No, and "take this from me and keep it" (replication).
//
// The server, the messages and the streams are boxo's. The client is ours,
// because boxo's chooses the peer by itself, and a want that a bad or silent peer
// was chosen for stays with it until the context ends. Here every want is sent to
// one known peer (a link), so that its silence, its refusal and its lies are its own:
//
//	Fetch, FetchAny, FetchTree
//	  session   who has it: explicit providers and hints, then connected peers, then penalised ones
//	    pull    a set of wants: pending, in flight, done; refused by whom
//	      lane  one holder's share: takes wants, sends them, hands blocks to the store
//	        link  all wants at one peer, of all lanes: at most Window and windowBytes
//
//	want:  pending ──take──▶ in flight ──block──▶ stored ──▶ done
//	          ▲                 │ refused, peer lost, silent, wrong bytes
//	          └─────────────────┘
//
// Invariants: a block is kept only under the digest of its bytes, which the store
// checks again; at most Window wants are outstanding at one peer, whatever the
// number of fetches; a peer that sends no byte for its tier's time, or not the block
// within a time that its size allows, loses its wants to others; every peer that
// was no help is named in the error; a session leaves nothing behind.
//
// Who brings in the same thing at the same time is a sibling (swarm.go): each takes
// another part from whoever has all, and the rest from its siblings.
//
// Errors are those of cas.Exchange. The package keeps no content and decides
// nothing about who may connect: the host's stream handlers are gated by
// membership elsewhere. Collection during a fetch is held off by the caller's pin.
//
// Lock order: link.mu before session.mu; nothing is sent while either is held.
package peer

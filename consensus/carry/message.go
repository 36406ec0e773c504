//lint:file-ignore SA1019 older nodes read the deprecated fields, so they are carried

package carry

import (
	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// A call is one byte, its kind, and a message; an answer is an error's text, empty if there
// is none, and a message. A message is a MessagePack map from the names of its fields:
//
//	call    ┌──────┬─────────────────────────────────────┐   a snapshot's bytes follow
//	        │ kind │ map: name · value · name · value …  │   after an InstallSnapshot
//	        └──────┴─────────────────────────────────────┘
//	answer  ┌───────────────────────┬────────────────────┐
//	        │ string: error's text  │ map, or nil        │
//	        └───────────────────────┴────────────────────┘
//
// Names are written in the order of the alphabet and read in any; one that is not known is
// passed over. Bytes and strings are written as "raw" (fixraw, raw 16, raw 32), times as the
// raw bytes of time.Time's binary form. This is, byte for byte, what hashicorp/raft's own
// NetworkTransport writes, so that nodes with either talk to each other.
//
// The first call on a connection, and the first answer that has a message or refuses the
// caller, have one field more, the last: "Hello" (see Desk), which raft's own passes over.
type kind = uint8

const helloField = "Hello"

const (
	appendEntries kind = iota
	requestVote
	installSnapshot
	timeoutNow
	requestPreVote
)

// field is one field of a message: its name, and a pointer to its value.
type field struct {
	name string
	at   any
}

// maxFields is the most that a message has.
const maxFields = 14

// newCall is an empty message of a kind.
func newCall(k kind) (any, error) {
	switch k {
	case appendEntries:
		return new(raft.AppendEntriesRequest), nil
	case requestVote:
		return new(raft.RequestVoteRequest), nil
	case installSnapshot:
		return new(raft.InstallSnapshotRequest), nil
	case timeoutNow:
		return new(raft.TimeoutNowRequest), nil
	case requestPreVote:
		return new(raft.RequestPreVoteRequest), nil
	}
	return nil, forgeyard.Errorf("raft call", forgeyard.Invalid, "kind %d is not known to this program", k)
}

// fields are those of a message, by name. b has room for them; nil: it is no message.
func fields(b []field, message any) []field {
	switch m := message.(type) {
	case *raft.AppendEntriesRequest:
		return append(b, field{"Addr", &m.Addr}, field{"Entries", &m.Entries}, field{"ID", &m.ID}, field{"Leader", &m.Leader},
			field{"LeaderCommitIndex", &m.LeaderCommitIndex}, field{"PrevLogEntry", &m.PrevLogEntry}, field{"PrevLogTerm", &m.PrevLogTerm},
			field{"ProtocolVersion", &m.ProtocolVersion}, field{"Term", &m.Term})
	case *raft.AppendEntriesResponse:
		return append(b, field{"Addr", &m.Addr}, field{"ID", &m.ID}, field{"LastLog", &m.LastLog}, field{"NoRetryBackoff", &m.NoRetryBackoff},
			field{"ProtocolVersion", &m.ProtocolVersion}, field{"Success", &m.Success}, field{"Term", &m.Term})
	case *raft.RequestVoteRequest:
		return append(b, field{"Addr", &m.Addr}, field{"Candidate", &m.Candidate}, field{"ID", &m.ID}, field{"LastLogIndex", &m.LastLogIndex},
			field{"LastLogTerm", &m.LastLogTerm}, field{"LeadershipTransfer", &m.LeadershipTransfer}, field{"ProtocolVersion", &m.ProtocolVersion},
			field{"Term", &m.Term})
	case *raft.RequestVoteResponse:
		return append(b, field{"Addr", &m.Addr}, field{"Granted", &m.Granted}, field{"ID", &m.ID}, field{"Peers", &m.Peers},
			field{"ProtocolVersion", &m.ProtocolVersion}, field{"Term", &m.Term})
	case *raft.RequestPreVoteRequest:
		return append(b, field{"Addr", &m.Addr}, field{"ID", &m.ID}, field{"LastLogIndex", &m.LastLogIndex}, field{"LastLogTerm", &m.LastLogTerm},
			field{"ProtocolVersion", &m.ProtocolVersion}, field{"Term", &m.Term})
	case *raft.RequestPreVoteResponse:
		return append(b, field{"Addr", &m.Addr}, field{"Granted", &m.Granted}, field{"ID", &m.ID}, field{"ProtocolVersion", &m.ProtocolVersion},
			field{"Term", &m.Term})
	}
	return rareFields(b, message)
}

// rareFields are those of messages that come once in a while.
func rareFields(b []field, message any) []field {
	switch m := message.(type) {
	case *raft.InstallSnapshotRequest:
		return append(b, field{"Addr", &m.Addr}, field{"Configuration", &m.Configuration}, field{"ConfigurationIndex", &m.ConfigurationIndex},
			field{"ID", &m.ID}, field{"LastLogIndex", &m.LastLogIndex}, field{"LastLogTerm", &m.LastLogTerm}, field{"Leader", &m.Leader},
			field{"Peers", &m.Peers}, field{"ProtocolVersion", &m.ProtocolVersion}, field{"Size", &m.Size},
			field{"SnapshotVersion", &m.SnapshotVersion}, field{"Term", &m.Term})
	case *raft.InstallSnapshotResponse:
		return append(b, field{"Addr", &m.Addr}, field{"ID", &m.ID}, field{"ProtocolVersion", &m.ProtocolVersion}, field{"Success", &m.Success},
			field{"Term", &m.Term})
	case *raft.TimeoutNowRequest:
		return append(b, field{"Addr", &m.Addr}, field{"ID", &m.ID}, field{"ProtocolVersion", &m.ProtocolVersion})
	case *raft.TimeoutNowResponse:
		return append(b, field{"Addr", &m.Addr}, field{"ID", &m.ID}, field{"ProtocolVersion", &m.ProtocolVersion})
	case *raft.Log:
		return append(b, field{"AppendedAt", &m.AppendedAt}, field{"Data", &m.Data}, field{"Extensions", &m.Extensions}, field{"Index", &m.Index},
			field{"Term", &m.Term}, field{"Type", &m.Type})
	}
	return nil
}

// heartbeat tells an append that carries nothing from one that asks for a look at the log.
func heartbeat(q *raft.AppendEntriesRequest) bool {
	return q.Term != 0 && (len(q.Addr) > 0 || q.Leader != nil) && q.PrevLogEntry == 0 && q.PrevLogTerm == 0 && len(q.Entries) == 0 && q.LeaderCommitIndex == 0
}

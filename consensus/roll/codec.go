package roll

import (
	"slices"

	"github.com/fxamacker/cbor/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// Hello stands at the head of a connection, once in each direction: in the first call, and
// in the first answer. As CBOR, keys append-only, those of a newer program passed over:
//
//	{1: claim, 2: {1: nonce, 2: verdict}, 3: [id, …]}
//	        2: whom the speaker refuses in the listener's name
//	        3: who votes, by the newest configuration in the speaker's log
//	claim   {1: id, 2: {1: number, 2: [nonce, …]}, 3: lineage, 4: term, 5: index, 6: rebuilding}
//	verdict {1: reason, 2: known number, 3: floor, 4: index}
type Hello struct {
	Claim   Claim    `cbor:"1,keyasint"`
	Refused *Refusal `cbor:"2,keyasint,omitempty"`
	Voters  []string `cbor:"3,keyasint,omitempty"` // at most MaxVoters
}

// Book is what a node keeps of all voters, and of its own processes, on its disk beside
// the votes. Own is synced before anybody hears of it; the rest may be a minute old.
//
//	own   {1: number, 2: [nonce, …]}
//	book  {1: lineage, 2: {id: {1: number, 2: nonce, 3: floor, 4: [{1: nonce, 2: verdict}, …]}}}
type Book struct {
	Lineage string            `cbor:"1,keyasint,omitempty"`
	Known   map[string]Record `cbor:"2,keyasint,omitempty"`
}

var dec = mustDec()

func mustDec() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, MaxNestedLevels: 8, MaxArrayElements: MaxRecords, MaxMapPairs: MaxRecords,
	}.DecMode()
	invariant.NoError(err, "the decoding options are valid")
	return m
}

// Encode is deterministic.
func (h Hello) Encode() []byte { return cborx.Marshal(h) }

// Encode is deterministic.
func (b Boot) Encode() []byte { return cborx.Marshal(b) }

// Encode is deterministic.
func (b Book) Encode() []byte { return cborx.Marshal(b) }

// DecodeHello reads what a peer sent.
func DecodeHello(b []byte) (h Hello, err error) {
	if len(b) > MaxHello {
		return h, forgeyard.Errorf("raft hello", forgeyard.Invalid, "%d bytes are more than %d", len(b), MaxHello)
	}
	if err := decode(b, &h); err != nil {
		return Hello{}, err
	}
	if c := h.Claim; c.ID == "" || len(c.ID) > maxName || len(c.Lineage) > maxName {
		return Hello{}, forgeyard.Errorf("raft hello", forgeyard.Invalid, "an id of %d and a lineage of %d letters, neither may be longer than %d and the id not empty", len(c.ID), len(c.Lineage), maxName)
	}
	if n := len(h.Voters); n > MaxVoters || slices.ContainsFunc(h.Voters, func(id string) bool { return id == "" || len(id) > maxName }) {
		return Hello{}, forgeyard.Errorf("raft hello", forgeyard.Invalid, "%d voters, none without a name or with one longer than %d: there are %d at most", n, maxName, MaxVoters)
	}
	return h, h.Claim.Boot.check()
}

// DecodeBoot reads what this node wrote; nil is the boot before the first.
func DecodeBoot(b []byte) (o Boot, err error) {
	if b == nil {
		return o, nil
	}
	if err := decode(b, &o); err != nil {
		return Boot{}, err
	}
	return o, o.check()
}

func (b Boot) check() error {
	if b.Number == 0 || len(b.Chain) == 0 || len(b.Chain) > MaxChain || uint64(len(b.Chain)) > b.Number {
		return forgeyard.Errorf("raft hello", forgeyard.Invalid, "start %d with %d nonces: there is one a start, and %d at most", b.Number, len(b.Chain), MaxChain)
	}
	return nil
}

// DecodeBook reads what this node wrote; nil is an empty one.
func DecodeBook(b []byte) (o Book, err error) {
	if b == nil {
		return o, nil
	}
	err = decode(b, &o)
	return o, err
}

func decode(b []byte, v any) error {
	if err := dec.Unmarshal(b, v); err != nil {
		return forgeyard.E("raft hello", forgeyard.Invalid, err)
	}
	return nil
}

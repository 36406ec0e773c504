package cas

import (
	"bytes"
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// The first field of each encoding names its format, so that an object can be
// told apart by a person and a later version by a program. It is no proof of
// kind: see Pin.
const (
	manifestFormat = "forgeyard.manifest/1"
	treeFormat     = "forgeyard.tree/1"
)

var (
	encMode = newEncMode()
	decMode = newDecMode()
)

func newEncMode() cbor.EncMode {
	m, err := cbor.CoreDetEncOptions().EncMode()
	invariant.NoError(err, "the deterministic CBOR options are valid")
	return m
}

func newDecMode() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		MaxArrayElements:  max(MaxBlocks, MaxTreeEntries),
		MaxMapPairs:       16, // the widest map, an entry, has seven
		MaxNestedLevels:   4,  // map, array, entry
	}.DecMode()
	invariant.NoError(err, "the CBOR limits are valid")
	return m
}

// decodeCanonical fills v from b and, because one content has one name, refuses
// bytes that encode would not have made. check runs before encode.
func decodeCanonical(what string, b []byte, maxBytes int, v any, check func() error) error {
	op := "cas decode " + what
	if len(b) > maxBytes {
		return forgeyard.Errorf(op, forgeyard.Limit, "%d bytes are more than the bound of %d", len(b), maxBytes)
	}
	if err := decMode.Unmarshal(b, v); err != nil {
		return forgeyard.E(op, forgeyard.Invalid, err)
	}
	if err := check(); err != nil {
		return err
	}
	again, err := encMode.Marshal(v)
	if err != nil {
		return forgeyard.E(op, forgeyard.Invalid, err)
	}
	if !bytes.Equal(again, b) {
		return forgeyard.E(op, forgeyard.Invalid, fmt.Errorf("the encoding is not the canonical one"))
	}
	return nil
}

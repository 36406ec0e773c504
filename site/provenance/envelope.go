package provenance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/forgeyard/forgeyard-node"
)

// PayloadType is what a DSSE envelope of an in-toto statement says that it holds.
const PayloadType = "application/vnd.in-toto+json"

// MaxEnvelope bounds what is read of somebody else's: the log's own bounds on a job are far
// below it.
const MaxEnvelope = 16 << 20

// Envelope is a DSSE envelope with one signature.
type Envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     string      `json:"payload"` // base64
	Signatures  []Signature `json:"signatures"`
}

// Signature is one under a key that its id names: the peer id of a node is its public key.
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   string `json:"sig"` // base64
}

// PAE is what is signed of a payload (DSSE's pre-authentication encoding).
func PAE(payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(PayloadType), PayloadType, len(payload), payload)
}

// Sealed is the envelope of a payload, with the signature of PAE under a key.
func Sealed(payload []byte, keyID string, sig []byte) []byte {
	return Envelope{
		PayloadType: PayloadType, Payload: base64.StdEncoding.EncodeToString(payload),
		Signatures: []Signature{{KeyID: keyID, Sig: base64.StdEncoding.EncodeToString(sig)}},
	}.bytes()
}

func (e Envelope) bytes() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("provenance: %v", err)) // it has strings only
	}
	return b
}

// Opened is what an envelope holds, once its signature was found good.
type Opened struct {
	Statement Statement
	Payload   []byte
	KeyID     string
}

// Open reads an envelope, asks signed whether the key made the signature of what was signed, and
// only then looks at what it says. A line end after it is no part of it.
func Open(raw []byte, signed func(keyID string, data, sig []byte) error) (Opened, error) {
	const op = "provenance"
	if len(raw) > MaxEnvelope {
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "an envelope of %d bytes, the bound is %d", len(raw), MaxEnvelope)
	}
	raw = bytes.TrimSuffix(raw, []byte("\n"))
	var e Envelope
	if err := json.Unmarshal(raw, &e); err != nil {
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "it is no DSSE envelope: %v", err).WithHint("write one: forgeyard-node job provenance ID -o json")
	}
	switch {
	case e.PayloadType != PayloadType:
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "it holds %q, %q is due", forgeyard.Clip(e.PayloadType, 80), PayloadType)
	case len(e.Signatures) != 1:
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "it has %d signatures, one is due", len(e.Signatures))
	case !bytes.Equal(e.bytes(), raw):
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "it is not written as it was signed: names, order or blanks differ").WithHint("keep the bytes that job provenance -o json wrote")
	}
	payload, err := base64.StdEncoding.Strict().DecodeString(e.Payload)
	if err != nil {
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "its payload is no base64: %v", err)
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(e.Signatures[0].Sig)
	if err != nil {
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "its signature is no base64: %v", err)
	}
	if err := signed(e.Signatures[0].KeyID, PAE(payload), sig); err != nil {
		return Opened{}, err
	}
	out := Opened{Payload: payload, KeyID: e.Signatures[0].KeyID}
	if err := json.Unmarshal(payload, &out.Statement); err != nil {
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "what is signed is no statement: %v", err)
	}
	if s := out.Statement; s.Type != StatementType || s.PredicateType != PredicateType {
		return Opened{}, forgeyard.Errorf(op, forgeyard.Invalid, "it states %q of type %q, %q is due", forgeyard.Clip(s.PredicateType, 80), forgeyard.Clip(s.Type, 80), PredicateType)
	}
	return out, nil
}

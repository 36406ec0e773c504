// Package cborx is the one deterministic encoding: CBOR in its core
// deterministic form (RFC 8949 §4.2), so that the same value has the same bytes,
// and so the same digest, on every machine.
//
// Decoding is strict: unknown keys, duplicate keys, indefinite lengths, deep
// nesting and anything that would not encode back to the same bytes are refused.
// The package is pure.
package cborx

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// Bounds of one decoded value: generous for what we send, small for an attacker.
const (
	maxNesting  = 32
	maxElements = 1 << 20 // a tree of a million entries is the largest thing encoded
)

var (
	enc  = mustEnc()
	dec  = mustDec(cbor.UTF8RejectInvalid)
	kept = mustDec(cbor.UTF8DecodeInvalid)
)

func mustEnc() cbor.EncMode {
	o := cbor.CoreDetEncOptions()
	o.Time = cbor.TimeUnixMicro
	m, err := o.EncMode()
	invariant.NoError(err, "the encoding options are valid")
	return m
}

func mustDec(text cbor.UTF8Mode) cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		MaxNestedLevels:   maxNesting,
		MaxArrayElements:  maxElements,
		MaxMapPairs:       maxElements,
		UTF8:              text,
	}.DecMode()
	invariant.NoError(err, "the decoding options are valid")
	return m
}

// RawMessage is an encoded value inside another.
type RawMessage = cbor.RawMessage

// Marshal encodes v. It crashes on a type that cannot be encoded, which only
// our own code can cause.
func Marshal(v any) []byte {
	b, err := enc.Marshal(v)
	invariant.NoError(err, "every type of ours encodes")
	return b
}

// Unmarshal decodes b into v, strictly.
func Unmarshal(b []byte, v any) error { return unmarshal(dec, b, v) }

// UnmarshalKept is Unmarshal for what this program keeps: a text in it may be one that was cut
// inside a letter, as earlier versions did. It is read as it stands, and written so again.
func UnmarshalKept(b []byte, v any) error { return unmarshal(kept, b, v) }

func unmarshal(dec cbor.DecMode, b []byte, v any) error {
	err := dec.Unmarshal(b, v)
	if err == nil {
		return nil
	}
	out := forgeyard.E("decode", forgeyard.Invalid, err)
	if unknown := (*cbor.UnknownFieldError)(nil); errors.As(err, &unknown) {
		return out.WithHint("a newer version of the program wrote this: upgrade the one that reads it")
	}
	return out
}

// UnmarshalCanonical also refuses bytes that v would not encode to. Use it
// where the bytes are named by their digest.
func UnmarshalCanonical(b []byte, v any) error {
	if err := Unmarshal(b, v); err != nil {
		return err
	}
	if !bytes.Equal(Marshal(v), b) {
		return forgeyard.E("decode", forgeyard.Invalid, fmt.Errorf("%d bytes are not in canonical form", len(b)))
	}
	return nil
}

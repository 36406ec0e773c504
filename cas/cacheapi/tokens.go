package cacheapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// Right is what a caller may do.
type Right uint8

// Rights, each with those before it.
const (
	MayNothing Right = iota
	MayRead
	MayWrite
)

// tokenBytes is how many random bytes a token has.
const tokenBytes = 32

// Tokens says who may do what. Its text has a line for each token: a right, read or write,
// and 64 hex digits. Only their hashes stay in memory.
type Tokens struct {
	read, write [][32]byte
	// Open lets callers without a token read: on loopback every account of the machine.
	Open bool
}

// NewTokens makes the text of two fresh tokens out of random bytes.
func NewTokens(random func([]byte)) string {
	var b [2 * tokenBytes]byte
	random(b[:])
	return fmt.Sprintf("read %x\nwrite %x\n", b[:tokenBytes], b[tokenBytes:])
}

// ParseTokens reads the text. Empty lines and lines that begin with # say nothing.
func ParseTokens(text string) (Tokens, error) {
	var t Tokens
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		right, token, _ := strings.Cut(line, " ")
		if err := checkToken(token); err != nil {
			return Tokens{}, forgeyard.Errorf("cache tokens", forgeyard.Invalid, "line %d: %v", i+1, err)
		}
		switch right {
		case "read":
			t.read = append(t.read, sha256.Sum256([]byte(token)))
		case "write":
			t.write = append(t.write, sha256.Sum256([]byte(token)))
		default:
			return Tokens{}, forgeyard.Errorf("cache tokens", forgeyard.Invalid, "line %d: a line begins with read or write", i+1)
		}
	}
	if len(t.write) == 0 {
		return Tokens{}, forgeyard.Errorf("cache tokens", forgeyard.Invalid, "there is no write token, so nobody could fill the cache")
	}
	return t, nil
}

func checkToken(s string) error {
	if b, err := hex.DecodeString(s); err != nil || len(b) != tokenBytes {
		return fmt.Errorf("a token is %d hex digits", 2*tokenBytes)
	}
	return nil
}

// TokenOf picks the first token with a right out of the text, for a person.
func TokenOf(text, right string) (string, bool) {
	for line := range strings.SplitSeq(text, "\n") {
		if r, token, _ := strings.Cut(strings.TrimSpace(line), " "); r == right {
			return token, true
		}
	}
	return "", false
}

// Judge says what the holder of an Authorization header may do, and whether it showed a
// token that is none. A token stands in it as Bearer, or as the password of Basic, for
// clients that know nothing else.
func (t Tokens) Judge(header string) (r Right, wrong bool) {
	if t.Open {
		r = MayRead
	}
	token := credential(header)
	if token == "" {
		return r, header != ""
	}
	sum := sha256.Sum256([]byte(token))
	read, write := anyEqual(t.read, sum), anyEqual(t.write, sum)
	switch {
	case write:
		return MayWrite, false
	case read:
		return MayRead, false
	}
	return r, true
}

func anyEqual(all [][32]byte, sum [32]byte) bool {
	found := 0
	for i := range all {
		found |= subtle.ConstantTimeCompare(all[i][:], sum[:])
	}
	return found == 1
}

func credential(header string) string {
	scheme, rest, _ := strings.Cut(header, " ")
	rest = strings.TrimSpace(rest)
	switch strings.ToLower(scheme) {
	case "bearer":
		return rest
	case "basic":
		b, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			return ""
		}
		_, password, _ := strings.Cut(string(b), ":")
		return password
	}
	return ""
}

// Package invariant turns a broken belief into a crash, in production too.
//
// It is for what can only be wrong if our own code is wrong. Broken input is an
// error, and corruption is marked and contained; neither belongs here.
package invariant

import "fmt"

// True crashes when a belief does not hold.
func True(ok bool, belief string, args ...any) {
	if !ok {
		panic("broken invariant: " + fmt.Sprintf(belief, args...))
	}
}

// NoError crashes when something that cannot fail has failed.
func NoError(err error, belief string) {
	if err != nil {
		panic("broken invariant: " + belief + ": " + err.Error())
	}
}

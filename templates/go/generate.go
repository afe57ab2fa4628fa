package main

// The code in pb is made from ../datalet.proto by `go generate`. It needs protoc (Debian: protobuf-compiler) and
// `go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12`; who only uses it needs neither.
//go:generate protoc -I .. --go_out=. --go_opt=module=datalet --go_opt=Mdatalet.proto=datalet/pb datalet.proto

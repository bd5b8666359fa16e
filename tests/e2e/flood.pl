# What the wire alone makes of who misbehaves: calls and bodies beyond its bounds, and slow ones. usage: flood.pl FILE, where the
# wire's lines go. It was started with --patience 1 --calls 2 --body 1000 and the token "secret"; nobody answers its lines.
use strict;
use IO::Socket::INET;
$SIG{PIPE} = "IGNORE";
my ($file, $port, @lines) = ($ARGV[0]);
for (1 .. 500) {
    @lines = lines();
    last if @lines && (($port) = $lines[0] =~ /"port": ?(\d+)/);
    select(undef, undef, undef, 0.02);
}
$port or die "it does not listen\n";

sub lines { open(my $f, "<", $file) or return; return <$f> }

sub open_call { # the connection, with a request's head and the beginning of its body
    my ($length, $body, $token) = @_;
    my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $port) or die "cannot connect: $!\n";
    print $s "POST /x HTTP/1.1\r\nHost: x\r\n$token", defined $length ? "Content-Length: $length\r\n" : "Transfer-Encoding: chunked\r\n",
        "\r\n$body";
    return $s;
}

sub status { # of its answer; 0: the connection was closed without one
    my $s = shift;
    my $head = <$s> // "";
    return $head =~ m{^HTTP/1.1 (\d+)} ? $1 : 0;
}

my $may = "Authorization: Bearer secret\r\n";
sub expect { my ($what, $want, $got) = @_; $want == $got or die "$what: $got instead of $want\n" }
expect("no token", 401, status(open_call(2, "{}", "")));
expect("the beginning of the token", 401, status(open_call(2, "{}", "Authorization: Bearer secre\r\n")));
expect("the token twice", 401, status(open_call(2, "{}", "Authorization: Bearer secretsecret\r\n")));
expect("a large body", 413, status(open_call(10000000, "", $may)));
expect("a body without end", 0, status(open_call(undef, "7d0\r\n" . " " x 2000 . "\r\n", $may)));
expect("no object", 400, status(open_call(2, "[]", $may)));
expect("no JSON", 400, status(open_call(2, "{{", $may)));
expect("no body", 400, status(open_call(0, "", $may)));
expect("deep", 400, status(open_call(990, '{"a":' . "[" x 985, $may)));
my $slow = open_call(100, "{", $may); # a byte now and then
my $begun = time;
while (time - $begun < 20) {
    select(undef, undef, undef, 0.3);
    last unless defined $slow->send(" ") && $slow->connected;
    my $in = "";
    vec($in, fileno($slow), 1) = 1;
    last if select($in, undef, undef, 0);
}
time - $begun < 20 or die "a slow body is waited for\n";
my @open = map { open_call(2, "{}", $may) } 1 .. 2;
for (1 .. 500) { last if (@lines = lines()) > 2; select(undef, undef, undef, 0.02) }
@lines == 3 or die "not as many lines as calls: @lines\n";
expect("one too many", 429, status(open_call(2, "{}", $may))) for 1 .. 50;
